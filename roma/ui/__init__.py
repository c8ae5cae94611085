"""Pages for people: the live dashboard, and reports on recorded runs."""
