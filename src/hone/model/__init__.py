"""The policy: a dense decoder with Hugging Face files in and out, its tokenizer and its chat rendering."""
