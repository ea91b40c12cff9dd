"""Other libraries that can call flashwave by themselves. Each module is imported on its own: it needs its library."""
