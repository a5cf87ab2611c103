//go:build linux && (amd64 || arm64)

// Command agent is the first process in a sandbox. The host starts it with a
// channel as file 3; people do not.
package main

import "gatehouse/internal/sandbox/agent"

func main() { agent.Main() }
