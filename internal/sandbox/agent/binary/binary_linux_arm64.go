package binary

import _ "embed" // for the agent

//go:embed agent-linux-arm64.gz
var packed []byte
