"""The two rulebooks: the documents' own, which is the default, and today's Kubernetes."""

from enum import StrEnum


class Profile(StrEnum):
    """Which rulebook decides where the two disagree (the table "Profiles" of the requirements)."""

    DOCUMENTS = "documents"
    KUBERNETES = "kubernetes"
