package main

// int80 does not exist on this processor.
func int80() {}
