"""Commands, flags and kinds of kubectl that are not here, each with what to use in its place.

This module is imported only when a command line cannot be parsed, so that others do not pay for it.
"""

from collections.abc import Sequence

COMMANDS = {
    "create": "apply -f FILE makes what is not there; a Secret or ConfigMap is written into a file, too",
    "replace": "apply -f FILE changes what differs",
    "edit": "change the file and apply it again; get KIND NAME -o yaml prints what there is",
    "patch": "change the file and apply it again; get KIND NAME -o yaml prints what there is",
    "set": "change the file and apply it again; scale changes replicas, rollout restart makes new pods",
    "label": "write labels into the manifest and apply it again",
    "annotate": "write annotations into the manifest and apply it again",
    "expose": "write a Service into a manifest and apply it; port-forward reaches a pod without one",
    "autoscale": "nothing here changes replicas on its own; use scale",
    "diff": "validate -f FILE checks manifests, and plan shows what would change in the cgroups",
    "debug": "exec POD -- COMMAND runs a command in a container, and why POD says what happened to it",
    "version": "evenkeel --version prints it",
    "cluster-info": "get node and describe node show this machine",
    "api-resources": "get all lists what there is; get --help names the kinds",
    "api-versions": "get --help names the kinds",
    "config": "there is no kubeconfig: --state-dir, or EVENKEEL_STATE_DIR, chooses the agent",
    "auth": "who may open the agent's socket may do everything",
    "proxy": "the agent answers HTTP at agent.sock in its state directory, and dashboard serves a page",
    "cordon": "there is one node: delete pods, or end the agent",
    "uncordon": "there is one node",
    "drain": "delete --all ends the pods of a namespace; Ctrl-C of evenkeel up --stop-pods ends all of them",
    "taint": "there is one node, and what is applied is run",
    "kustomize": "kustomize build DIRECTORY | evenkeel apply -f -",
    "options": "each command has its own: evenkeel COMMAND --help",
}

_NO_DRY_RUN = "validate -f FILE checks it, and changes nothing"
_ALWAYS = "it is always so here: leave it out"
FLAGS = {
    "apply": {
        "-k": "kustomize build DIRECTORY | evenkeel apply -f -",
        "--kustomize": "kustomize build DIRECTORY | evenkeel apply -f -",
        "-R": "a directory's own files are read: name each directory with -f",
        "--recursive": "a directory's own files are read: name each directory with -f",
        "-n": "write metadata.namespace into the manifest",
        "--namespace": "write metadata.namespace into the manifest",
        "--dry-run": _NO_DRY_RUN,
        "--prune": "delete what is no longer wanted; evenkeel up DIRECTORY follows its files, also when they go",
        "--server-side": _ALWAYS,
        "--force-conflicts": "nobody else changes objects here: leave it out",
        "--force": "delete it first, and apply it then",
        "--validate": _ALWAYS,
        "--wait": "rollout status KIND/NAME, or wait, waits for what was applied",
        "-o": "get KIND NAME -o yaml prints it afterwards",
        "-l": "everything in the files is applied: name fewer of them",
    },
    "delete": {
        "-k": "kustomize build DIRECTORY | evenkeel delete -f -",
        "--cascade": "a workload is deleted with its pods: leave it out",
        "--dry-run": "get shows what there is; nothing is deleted without its name, --all or -l",
        "--timeout": "with --wait=false it does not wait; wait --for=delete waits for a while",
        "-A": "delete is for one namespace: give -n NS",
        "--all-namespaces": "delete is for one namespace: give -n NS",
        "--field-selector": "get pods --field-selector … -o name prints the names to delete",
    },
    "get": {
        "-f": "name the kinds and names",
        "--raw": "the agent answers HTTP at agent.sock in its state directory (docs/api.md)",
        "--watch-only": "-w prints what there is first",
        "--chunk-size": _ALWAYS,
    },
    "logs": {
        "--max-log-requests": _ALWAYS,
        "--ignore-errors": "leave it out",
        "--all-pods": "-l LABELS prints the logs of all pods with these labels",
    },
    "scale": {
        "-f": "name the workload: evenkeel scale --replicas N deployment/NAME",
        "--all": "name each workload",
        "--timeout": "rollout status deployment/NAME --timeout 1m waits",
        "--current-replicas": "leave it out",
    },
    "rollout": {
        "-w": "rollout status waits; get deployment NAME shows where it stands",
        "--watch": "rollout status waits; get deployment NAME shows where it stands",
        "-l": "name the workloads",
        "--to-revision": "there are no old revisions: apply the former file",
    },
    "top": {
        "--sort-by": "the greatest use of memory comes first",
        "--no-headers": "top -o json is for programs",
        "-l": "top pods NAME… shows some of them",
    },
    "events": {"--types": "get events -o json is for programs; a warning has the type Warning"},
    "run": {
        "--port": "leave it out: no port needs to be declared",
        "--labels": "write a manifest, and apply it",
        "--dry-run": _NO_DRY_RUN,
        "--overrides": "write a manifest, and apply it",
        "--command": "what follows -- is the command: leave it out",
        "--expose": "leave it out; port-forward reaches the pod",
    },
    "explain": {
        "": "explain shows what a node makes of manifests: give -f FILE. All fields of a pod are in docs/pod-fields.md",
    },
}
_ROLLOUT_ACTIONS = {
    "history": "there are no old revisions here; the file is what you keep",
    "undo": "there are no old revisions here: apply the former file",
    "pause": "write paused: true into the Deployment and apply it",
    "resume": "take paused: true out of the Deployment and apply it",
}

_OTHER_KINDS = {
    ("namespaces", "namespace", "ns"): "a namespace is part of a name here, and needs no object; get all -A shows them",
    ("ingresses", "ingress", "ing"): "nothing here forwards by host name; port-forward, or hostPort in a pod",
    ("serviceaccounts", "serviceaccount", "sa"): "there are no accounts without a cluster",
    ("persistentvolumes", "persistentvolume", "pv"): "a claim is a directory of its own; get pvc lists them",
    ("storageclasses", "storageclass", "sc"): "a claim is a directory of its own; get pvc lists them",
    ("horizontalpodautoscalers", "horizontalpodautoscaler", "hpa"): "nothing changes replicas on its own; use scale",
    ("endpoints", "ep", "endpointslices", "endpointslice"): "get services shows the addresses of their pods",
    ("networkpolicies", "networkpolicy", "netpol"): "they are refused: nothing here would keep to them",
    ("poddisruptionbudgets", "poddisruptionbudget", "pdb"): "they concern a cluster, and are passed over",
    ("customresourcedefinitions", "customresourcedefinition", "crd", "crds"): "custom resources are passed over",
    ("componentstatuses", "cs"): "describe node shows the state of this machine",
}  # fmt: skip


def about_kind(word: str) -> str:
    """What there is in the place of a kind of kubectl; empty if it is no kind that is missing here."""
    return next((said for words, said in _OTHER_KINDS.items() if word.lower() in words), "")


def about_words(command: str, words: Sequence[str]) -> str:
    """What to use in the place of a flag of kubectl on the command line of a command; empty if there is none."""
    own = list(words[: words.index("--")] if "--" in words else words)
    if command == "rollout" and (action := next((one for one in own[1:] if one in _ROLLOUT_ACTIONS), "")):
        return f"rollout {action}: {_ROLLOUT_ACTIONS[action]}"
    known = FLAGS.get(command, {})
    for word in own:
        flag = word.partition("=")[0]
        if flag in known and flag:
            return f"{command} has no {flag}: {known[flag]}"
    has_files = not {"-f", "--filename"}.isdisjoint(own)
    return known.get("", "") if not has_files and any(not word.startswith("-") for word in own[1:]) else ""
