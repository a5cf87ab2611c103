package main

// int80 enters the kernel as programs of 32 bits do.
func int80()
