"""Reads the agent's configuration from a file."""

from collections.abc import Container, Mapping

from evenkeel.api.config import API_VERSION, KIND, KubeletConfiguration
from evenkeel.api.decode import Findings, decode
from evenkeel.api.lined_values import Document, LinedDict
from evenkeel.api.problems import line_of, without_effect
from evenkeel.api.yaml_text import documents
from evenkeel.errors import InvalidInput, Problem
from evenkeel.named_tuples import NamedTuple


class ConfigFile(NamedTuple):
    """A file that could be decoded. `config` is as written: neither defaulted nor validated."""

    config: KubeletConfiguration
    source: str
    warnings: tuple[Problem, ...] = ()
    document: Document = Document(None, 0)

    def located(self, problem: Problem, overridden: Container[str] = ()) -> Problem:
        """`problem` with file and line, taken from the first of its fields that the file sets and no flag overrides."""
        written = self.document.value if isinstance(self.document.value, LinedDict) else {}
        for field in problem.field.split(", "):
            name = field.partition("[")[0].partition(".")[0]
            if name in written and name not in overridden:
                return problem._replace(source=self.source, line=line_of(self.document, field))
        return problem


def read_config(text: str, source: str) -> ConfigFile:
    """The configuration in `text`. An empty text sets nothing. Raises `InvalidInput` with every misshapen field."""
    problems: list[Problem] = []
    found = list(documents(text, problems))
    if len(found) > 1:
        problems.append(
            Problem(
                "",
                "a second document: a configuration is one document, leave out the ---",
                line=found[1].line,
            )
        )
    if problems:
        raise InvalidInput([problem._replace(source=source) for problem in problems])
    if not found:
        return ConfigFile(KubeletConfiguration(), source)
    (document,) = found
    findings = Findings()
    if isinstance(document.value, Mapping):
        problems += _wrong_type(document.value)
    if not problems:  # in an object of another kind all fields would be unknown
        config = decode(KubeletConfiguration, _without_type(document.value), findings)
        problems += findings.problems
    file = ConfigFile(KubeletConfiguration(), source, (), document)
    if problems:
        raise InvalidInput([file.located(problem)._replace(source=source) for problem in problems])
    warnings: tuple[Problem, ...] = ()
    if findings.not_honoured:
        one = without_effect(findings.not_honoured[0], findings.not_honoured)
        warnings = (file.located(one),)
    return file._replace(config=config, warnings=warnings)


def _wrong_type(value: Mapping[str, object]) -> list[Problem]:
    """Kind and apiVersion must be those of a KubeletConfiguration. A file may leave them out."""
    return [
        Problem(field, f'must be {right} in a configuration, not "{str(value[field])[:60]}"')
        for field, right in (("apiVersion", API_VERSION), ("kind", KIND))
        if value.get(field) not in (None, right)
    ]


def _without_type(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: item for name, item in value.items() if name not in ("apiVersion", "kind")}
