"""The parts that need MindSpore itself: its tape, its graphs. Nothing else imports it."""
