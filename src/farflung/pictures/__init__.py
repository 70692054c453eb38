"""Pictures of topologies, models and simulated steps, drawn by matplotlib (an extra) as SVG, PNG or PDF."""
