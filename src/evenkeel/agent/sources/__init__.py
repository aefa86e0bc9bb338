"""Pods from files: finds the files, watches them for changes, and reads their pods."""
