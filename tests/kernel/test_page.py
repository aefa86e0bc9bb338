"""The live page in a real browser, before a real agent."""

import time
from pathlib import Path
from typing import Any

import pytest

from evenkeel.agent.observe.pod_history import PodHistory
from evenkeel.api.manifests import read_manifests
from tests.fake_front import FakeFront, running, served
from tests.kernel.agents import MIB, MakeUp, Up, pod, up
from tests.kernel.browser import PATIENCE_SECONDS, chromium, looking
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

__all__ = ["chromium", "up"]

pytestmark = [pytest.mark.cgroup("host"), pytest.mark.processes_only("about the page, not about what runs")]
FLAGS = ("--eviction-hard=memory.available<48Mi", "--eviction-pressure-transition-period=1s")
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 320, "height": 640}


def grow(name: str, mib: int, *, request_mib: int = 0, **spec: Any) -> dict[str, Any]:
    resources = {"resources": {"requests": {"memory": f"{request_mib}Mi"}}} if request_mib else {}
    command = [str(programs() / "grow"), "anon", str(mib * MIB), "0"]
    return pod(name, command, container=resources, **spec)


def started(up: MakeUp, *pods: dict[str, Any]) -> Up:
    agent = up(*FLAGS)
    agent.start()
    agent.apply(*pods)
    for one in pods:
        agent.await_phase(one["metadata"]["name"], "Running")
    return agent


def row(page: Any, name: str) -> Any:
    return page.locator("#rows [data-kind=pod]").filter(has=page.get_by_text(name, exact=True))


def used(row: Any, resource: str, unit: str) -> float:
    """What the row shows as its use, if it is in that unit."""
    text = row.locator(f".use[data-label={resource}] .amounts b").inner_text().removeprefix("▲ ")
    number = text.removesuffix(unit)
    return float(number) if text.endswith(unit) and number.replace(".", "", 1).isdigit() else 0.0


def until(page: Any, expression: str) -> None:
    """`expression` is true in the page. The page's own policy forbids eval, so the wait cannot run inside the page."""
    eventually(lambda: page.evaluate(expression), within_seconds=PATIENCE_SECONDS)


@pytest.mark.req("E14", "E17")
def test_pods_appear_use_moves_and_an_eviction_opens_its_story(up: MakeUp, chromium: Any):
    spin = pod(
        "busy", ["sh", "-c", "while :; do :; done"], container={"resources": {"limits": {"cpu": "200m"}}}
    )
    agent = started(up, grow("within", 96, request_mib=128))
    agent.await_watch()
    with looking(chromium, agent.state, viewport=DESKTOP) as page:
        within = row(page, "within")
        within.get_by_text("Burstable").wait_for()
        within.get_by_text("Running").wait_for()
        # What the kernel says is what the page says.
        eventually(lambda: 90 <= used(within, "memory", "Mi") <= 110, within_seconds=PATIENCE_SECONDS)
        assert "/ 128Mi / –" in within.inner_text()
        within.focus()
        page.keyboard.press("ArrowRight")  # what is below it
        page.get_by_role("row", name="main, Burstable, cpu BestEffort, Running").wait_for()
        page.keyboard.press("ArrowLeft")

        agent.apply(spin)
        busy = row(page, "busy")
        busy.wait_for()
        eventually(lambda: 40 <= used(busy, "cpu", "m") <= 250, within_seconds=PATIENCE_SECONDS)  # of 200m

        agent.apply(grow("runaway", 1024, restartPolicy="Never"))
        reported = page.locator("#events [data-state=evicted]").filter(has_text="default/runaway")
        reported.wait_for()
        at = next(one["at"] for one in agent.client.lines("/events") if one["reason"] == "Evicted")
        print(f"the eviction was seen {time.time() - at:.2f} s after it was decided, or sooner")
        page.locator("#said", has_text="default/runaway").wait_for(state="attached")  # for a screen reader
        row(page, "runaway").get_by_text("Evicted").wait_for()
        eventually(lambda: page.locator("#line .mark[data-state=evicted]").count() == 1)

        reported.get_by_role("button").click()
        story = page.get_by_role("dialog", name="default/runaway")
        story.get_by_text("It is Failed now: Evicted.").wait_for()
        assert "allocatableMemory.available" in story.inner_text()
        assert "default/within (Burstable, priority 0)" in story.inner_text()  # pods that were not evicted
        assert page.evaluate("location.hash") == "#pod/default/runaway"
        page.keyboard.press("Escape")
        story.wait_for(state="hidden")
        until(page, "location.hash === ''")

        within.click()
        story = page.get_by_role("dialog", name="default/within")
        story.get_by_text("default/runaway was evicted, and this pod stayed").wait_for()
        asked = story.get_by_role("row", name="main: memory request")
        assert asked.inner_text().split("\t")[1:] == ["128Mi", "128Mi"]
        story.get_by_text("Every cgroup file").click()
        limit = story.get_by_role("table", name="container main").get_by_role("row", name="cpu.")
        assert limit.count() > 0
        page.get_by_role("button", name="Close").click()
        story.wait_for(state="hidden")


def test_the_page_says_that_it_is_stale_and_finds_the_agent_again(up: MakeUp, chromium: Any):
    agent = started(up, grow("within", 8))
    with looking(chromium, agent.state, viewport=DESKTOP) as page:
        row(page, "within").wait_for()
        agent.kill()
        page.get_by_role("status").filter(has_text="No news").wait_for()
        page.get_by_text("What you see is from").wait_for()
        agent.start()
        agent.apply(grow("later", 8))
        page.get_by_role("status").filter(has_text="Live").wait_for()
        row(page, "later").get_by_text("Running").wait_for()
        # The browser itself reports an address that did not answer; that is no mistake of the page.
        page.complaints[:] = [one for one in page.complaints if "Failed to load resource" not in one]


def test_what_pods_say_is_text_and_nothing_else(up: MakeUp, chromium: Any):
    evil = "<img src=x onerror=hacked=1><script>hacked=1</script>"
    agent = up(*FLAGS)
    agent.start()
    agent.apply(pod("evil", [evil], restartPolicy="Never"))
    eventually(lambda: any(evil in one["message"] for one in agent.client.lines("/events")))
    with looking(chromium, agent.state, viewport=DESKTOP) as page:
        row(page, "evil").click()
        story = page.get_by_role("dialog", name="default/evil")
        story.get_by_text(evil).first.wait_for()
        assert story.locator("img, script").count() == 0
        assert page.evaluate("typeof hacked") == "undefined"
        # Text from the address is shown as text, too.
        page.goto(f"{page.url.partition('#')[0]}#pod/%3Cimg%20src%3Dx%3E/{'%22%3E' * 3}")
        page.get_by_role("dialog", name="<img src=x>").get_by_text("has no history").wait_for()
        assert page.locator("dialog img").count() == 0
        page.complaints[:] = [one for one in page.complaints if "404" not in one]  # there is no such pod


@pytest.fixture
def full(tmp_path: Path):
    """A node with 110 pods of three containers each, which need not run."""
    front = FakeFront()
    containers = "".join(
        f"\n  - {{name: c{n}, image: host, command: [sleep], resources: {{requests: {{memory: 16Mi}}}}}}"
        for n in range(3)
    )
    text = "\n---\n".join(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{n}, namespace: n{n % 4}}}\nspec:\n  containers:{containers}"
        for n in range(110)
    )
    pods = read_manifests(text, "here").pods
    with served(front, tmp_path) as agent:
        for one in pods:
            agent.call(front.put, running(one))
            front.histories[one.key] = PodHistory(one.key, (), True, "Running")
        agent.call(front.tell, "Evicted", "it used too much", "n1/p1", type="Warning")
        yield Path(agent.state_dir)


def test_the_keyboard_reaches_everything(full: Path, chromium: Any):
    with looking(chromium, full, viewport=DESKTOP) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.innerText") == "Skip to the pods"
        reached = []
        for _ in range(20):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.role"))
            if reached[-1] == "row":
                break
        assert [one for one in reached if one] == ["theme", "all-events", "find", "order", "fold", "row"]
        assert "kubepods" in page.evaluate("document.activeElement.innerText")
        page.keyboard.press("ArrowDown")  # the first branch
        page.keyboard.press("ArrowLeft")  # is folded
        assert page.evaluate("document.activeElement.ariaExpanded") == "false"
        assert page.locator("#rows [data-kind=pod]").count() == 0
        page.keyboard.press("ArrowRight")
        assert page.locator("#rows [data-kind=pod]").count() == 110
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.dataset.kind") == "pod"
        page.keyboard.press("ArrowRight")
        assert page.locator("#rows [data-kind=container]").count() == 3
        page.keyboard.press("Enter")
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")
        assert page.evaluate("document.activeElement.dataset.kind") == "pod"  # one is where one was
        page.keyboard.press("ArrowLeft")  # folds the pod
        page.keyboard.press("ArrowLeft")  # goes to what is around it
        assert page.evaluate("document.activeElement.dataset.kind") == "branch"
        page.keyboard.press("End")
        assert page.evaluate("document.activeElement.nextElementSibling") is None


def test_many_containers_are_updated_where_they_stand_and_found_by_name(full: Path, chromium: Any):
    with looking(chromium, full, viewport=DESKTOP) as page:
        assert page.locator("#rows [data-kind=pod]").count() == 110
        page.get_by_role("button", name="Unfold pods").click()
        assert page.locator("#rows [data-kind=container]").count() == 330
        # The second view has a cpu use, the first had none: the rows are the same ones.
        page.evaluate("for (const row of document.querySelectorAll('#rows .row')) row.kept = true")
        until(page, "document.querySelector('#rows [data-kind=container]').innerText.includes('250m')")
        assert page.evaluate("[...document.querySelectorAll('#rows .row')].every((row) => row.kept)")
        page.get_by_role("searchbox").fill("n1/p10")
        assert page.locator("#rows [data-kind=pod]").count() == 3  # p101, p105 and p109
        page.get_by_role("searchbox").fill("nobody")
        page.get_by_text("No pod matches").wait_for()


# For each text that is seen: the contrast of its colour with what is behind it, by the rules of WCAG 2.
FAINT = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const channels = (colour) => {
    if (!known.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      known.set(colour, canvas.getImageData(0, 0, 1, 1).data);
    }
    return known.get(colour);
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, index) => sum + v * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = channels(getComputedStyle(one).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  const faint = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !node.checkVisibility() || node.closest(".hidden, option")) continue;
    const [one, other] = [light(channels(getComputedStyle(node).color)), light(behind(node))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) faint.push(`${texts.currentNode.textContent.trim()}: ${contrast.toFixed(2)}`);
  }
  return faint;
}"""
NAMED = {
    "button",
    "checkbox",
    "searchbox",
    "combobox",
    "dialog",
    "treegrid",
    "table",
    "row",
    "region",
    "img",
    "main",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_enough_contrast_and_room_on_a_phone(full: Path, chromium: Any, scheme: str):
    with looking(chromium, full, viewport=PHONE, color_scheme=scheme, reduced_motion="reduce") as page:
        page.locator("#rows [data-kind=pod]").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert page.evaluate(FAINT) == []
        # What is above it may be drawn in this moment, and the pointer would meet another row.
        page.locator("#rows [data-kind=pod]").first.dispatch_event("click")
        page.get_by_role("dialog").get_by_text("It is Running now.").wait_for()
        assert page.evaluate(FAINT) == []
        assert page.evaluate("document.querySelector('dialog').scrollWidth") <= PHONE["width"]
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(
            state="hidden"
        )  # what is behind it is not there for readers until then
        tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        seen = {node["role"]["value"] for node in tree if not node["ignored"]}
        assert {"banner", "main", "treegrid", "columnheader", "status", "button"} <= seen
        nameless = [
            node["role"]["value"]
            for node in tree
            if not node["ignored"]
            and node["role"]["value"] in NAMED - {"main"}
            and not node.get("name", {}).get("value", "").strip()
        ]
        assert nameless == []
        small = (
            "[...document.querySelectorAll('button, input, select')].filter((one) => one.checkVisibility())"
        )
        heights = page.evaluate(
            f"{small}.map((one) => (one.closest('label') ?? one).getBoundingClientRect().height)"
        )
        assert min(heights) >= 24
        theme = page.get_by_role("button", name="Colours")
        other = "dark" if scheme == "light" else "light"
        while page.evaluate("document.documentElement.dataset.theme") != other:
            theme.click()
        page.reload()
        page.locator(f"html[data-theme={other}]").wait_for()  # it is remembered
        page.complaints[:] = [
            one for one in page.complaints if "404" not in one
        ]  # a fake agent has no stories
