"""Images from registries, as both runtimes see them: references and credentials."""
