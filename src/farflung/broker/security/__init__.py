"""The certificate authority of a broker and the tokens that it has issued."""
