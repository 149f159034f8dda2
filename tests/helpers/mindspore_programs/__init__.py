"""Programs in the shape of public ones. They import MindSpore only: they are run with a patch."""
