"""What every room uses: errors, files that are written whole or not at all, pycaffe itself."""
