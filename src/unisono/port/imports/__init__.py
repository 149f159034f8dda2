"""The imports of a file that changes: new names, names that go, and the prefix rule."""
