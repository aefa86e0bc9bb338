// The last view of the node (docs/api.md, /view), updated with new figures, in the shape that the page draws.

const RESOURCES = { memory: "memory", cpu: "cpu", storage: "ephemeral-storage" };

export class View {
  #whole = null;
  #static = []; // of each cgroup, all but its figures

  /** Takes a whole view: the first one, and one in which more than figures has changed. */
  replace(view) {
    this.#whole = view;
    const pods = new Map(view.pods.map((pod) => [pod.pod, pod]));
    const cgroups = view.cgroups.filter((cgroup) => cgroup.kind !== "ancestor");
    this.#static = cgroups.map((cgroup) => staticOf(cgroup, pods));
    this.#static.push(...view.pods.filter((pod) => !pod.path).map((pod) => withoutCgroup(pod, cgroups)));
  }

  /** Takes new figures. False if there is no view yet. */
  update(figures) {
    if (!this.#whole) return false;
    for (const cgroup of this.#whole.cgroups) {
      if (Object.hasOwn(figures.figures, cgroup.path)) cgroup.figures = figures.figures[cgroup.path];
    }
    const { figures: _, ...rest } = figures;
    Object.assign(this.#whole, rest);
    return true;
  }

  get drawn() {
    const view = this.#whole;
    const figures = new Map(view.cgroups.map((cgroup) => [cgroup.path, cgroup.figures]));
    return {
      at: view.at,
      name: view.node,
      about: `cgroup ${view.cgroupVersion} · ${view.cgroupDriver} driver · ${view.profile} profile`,
      resources: Object.fromEntries(
        Object.entries(RESOURCES).map(([name, key]) => [name, resource(view.resources[key])]),
      ),
      stalls: view.pressure.stalls ?? {},
      conditions: view.pressure.conditions ?? [],
      thresholds: view.pressure.thresholds ?? [],
      events: view.happenings,
      cgroups: this.#static.map((one) => withFigures(one, figures.get(one.path))).filter(isWorthARow),
    };
  }
}

function resource(now) {
  if (!now) return null;
  return {
    ...now,
    reserved: { kube: now.kubeReserved, system: now.systemReserved, eviction: now.evictionHard },
  };
}

function staticOf(cgroup, pods) {
  const pod = pods.get(cgroup.pod);
  if (cgroup.kind === "pod" && pod) return { ...cgroup, ...about(pod) };
  const state = cgroup.kind === "container" ? pod?.states[cgroup.container] : undefined;
  return state ? { ...cgroup, status: word(state), restarts: state.restarts } : cgroup;
}

/** A pod that does not run has no cgroup. It is listed with the pods of its class. */
function withoutCgroup(pod, cgroups) {
  const branch = cgroups.find((one) => one.kind === "branch" && one.qosClass === pod.qosClass);
  const root = cgroups.find((one) => one.kind === "root");
  const { pod: name, requests, limits, qosClass } = pod;
  const parent = (branch ?? root)?.path;
  return { path: `pod ${pod.uid}`, parent, kind: "pod", name, pod: name, qosClass, requests, limits, ...about(pod) };
}

function about(pod) {
  const phase = pod.isEnding ? "Terminating" : pod.reason || pod.phase || "Pending";
  const waits = phase === "Running" && pod.ready < pod.containers;
  const status = waits ? `Running, ${pod.ready} of ${pod.containers} ready` : phase;
  return { status, isRunning: pod.phase === "Running", restarts: pod.restarts };
}

function word({ state, ready }) {
  return state === "Running" && !ready ? "Running, not ready" : state;
}

/** The cgroup for a pod's overhead is mostly empty. */
function isWorthARow(cgroup) {
  return cgroup.kind !== "infrastructure" || cgroup.memory.used > 0;
}

function withFigures(one, figures) {
  const { requests = {}, limits = {} } = one;
  return {
    ...one,
    memory: { used: figures?.workingSetBytes, request: requests.memory, limit: limits.memory },
    cpu: { used: figures?.cpuMillicores, request: requests.cpu, limit: limits.cpu },
    oomKills: figures?.oomKills ?? 0,
  };
}
