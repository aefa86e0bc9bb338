"""Settings that every test shares."""

from hypothesis import settings

# A test says what is right, not how fast this machine is today; speed is measured under bench/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
