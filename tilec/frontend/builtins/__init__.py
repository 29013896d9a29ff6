"""What the builtins of `tilec.language` mean, in a module for each group of them, as
`tilec.builtins` declares them; `table` has them all."""
