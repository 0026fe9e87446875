"""What a person starts by hand at a hospital, a server or a clinic; no job reaches it.

Public are its commands alone, as ``silofl import``, ``silofl site check`` and ``silofl predict``.
"""
