"""Starting and stopping what a configuration asks for."""
