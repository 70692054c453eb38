"""Pictures as SVG, written by hand: no library draws them, and every browser shows them."""
