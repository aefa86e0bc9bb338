"""Pods, nodes and configurations for tests: builders in few words, and strategies that draw them."""

from hypothesis import strategies as st

# What JSON and YAML can both hold. Whole numbers stay below those that turn into text.
_words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Cn", "Co"]), max_size=8)
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words, inner, max_size=4),
    max_leaves=12,
)
