"""What codecs remember from one tensor to the next."""
