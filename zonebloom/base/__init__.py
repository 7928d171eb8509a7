"""Small modules that every room uses: arguments, text, displays, threads, row ranges, ..."""
