"""`tuneloop doctor`: is this machine, and this project's folder, ready for the loop?

Every check is a plain function that returns a `Finding`. Nothing here needs a package that is not in
Python itself until it has looked whether that package is there.
"""
