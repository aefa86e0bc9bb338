"""Names against the regular expressions that Kubernetes states them by."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.validation import name_rules

LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
RULES = {
    name_rules.dns_label: (LABEL, 63),
    name_rules.dns_subdomain: (SUBDOMAIN, 253),
    name_rules.label_value: (rf"({QUALIFIED})?", 63),
    name_rules.environment_name: (r"[ -<>-~]+", 10_000),
    name_rules.header_name: (r"[-A-Za-z0-9]+", 10_000),
    name_rules.uid: (r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?", 128),
    name_rules.qualified_name: (rf"({SUBDOMAIN}/)?{QUALIFIED}", 317),
    name_rules.port_name: (r"(?!.*--)(?=.*[a-z])[a-z0-9]([-a-z0-9]*[a-z0-9])?", 15),
}
texts = st.text(alphabet="aZ09-_./=é \n\0", max_size=12) | st.text(alphabet="ab9-.", max_size=300)


@pytest.mark.req("A3")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@given(text=texts)
def test_a_name_is_good_exactly_if_its_expression_matches(rule, text):
    expression, longest = RULES[rule]
    matches = re.fullmatch(expression, text) is not None and len(text) <= longest
    if rule is name_rules.qualified_name:
        prefix, _, name = text.rpartition("/")
        matches = matches and len(name) <= 63 and len(prefix) <= 253
    assert (rule(text) == "") == matches


@pytest.mark.parametrize(
    "prefix, good",
    [("web-", True), ("web--", True), ("web", True), ("-", False), ("Web-", False), ("", False)],
)
def test_a_prefix_may_end_in_a_dash(prefix, good):
    assert (name_rules.name_prefix(prefix) == "") == good


def test_text_for_the_kernel_is_unicode_without_nul():
    assert name_rules.plain_text("naïve 🚢") == ""
    assert "NUL" in name_rules.plain_text("a\0")
    assert "surrogate" in name_rules.plain_text("\udcff")
