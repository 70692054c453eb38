"""Break a real fleet at seeded moments, and compare what it trained with an undisturbed run, bit for bit."""
