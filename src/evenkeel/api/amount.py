"""Whole numbers that a file may also write as a quantity: `1610612736` or `1.5Gi`.

Figures that are measured and compared by the thousand are plain integers in memory; people who write a file
with figures in it should not have to count zeros.
"""

from typing import NewType

Amount = NewType("Amount", int)
