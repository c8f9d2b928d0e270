"""Pictures and pages. Draws and their analysis come in; figures and one HTML page go out."""
