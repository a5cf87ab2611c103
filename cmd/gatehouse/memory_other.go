//go:build !linux

package main

// unmapProgram does nothing, because other systems count and map the pages of programs in other ways.
func unmapProgram() {}
