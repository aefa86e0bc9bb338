"""When something must go: the thresholds that say so, who goes, and in which order (A20, B16)."""
