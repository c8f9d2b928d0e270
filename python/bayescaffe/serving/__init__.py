"""A service that answers "how sure?": a net -> HTTP, and a page."""
