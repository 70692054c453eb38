"""Jobs of which one of six workers is a saboteur: which of them end well, and how often it is caught."""
