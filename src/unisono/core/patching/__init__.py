"""What `--patch` needs for every framework: to notice its import, to swap its names, to say so."""
