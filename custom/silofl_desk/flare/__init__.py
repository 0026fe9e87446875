"""NVFlare's simulator, its proof of concept, and jobs."""
