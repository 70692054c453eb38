"""Does a model still learn when its links are compressed: subjects, ways, runs and what came of them."""
