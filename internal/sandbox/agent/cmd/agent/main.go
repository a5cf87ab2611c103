//go:build linux && (amd64 || arm64)

// Command agent is the first process in a sandbox. The host starts it with the channel as file 3; it is not
// for use by hand.
package main

import "gatehouse/internal/sandbox/agent"

func main() { agent.Main() }
