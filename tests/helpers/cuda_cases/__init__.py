"""What ranks do in the tests of engine `cuda`, on a GPU that is emulated."""
