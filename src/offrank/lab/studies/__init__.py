"""Statistics and, with them, the paper's tables and figures."""
