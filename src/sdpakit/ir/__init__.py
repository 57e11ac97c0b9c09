"""What is computed: the attention program, built from a spec, printed, checked and interpreted."""
