"""What a clinic needs beside SiloFL to use a model every day: exams from the archive, answers back to it.

Public are its commands alone, as ``silofl receive`` and ``silofl serve``.
"""
