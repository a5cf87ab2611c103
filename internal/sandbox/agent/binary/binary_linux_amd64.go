package binary

import _ "embed" // for the agent

//go:embed agent-linux-amd64.gz
var packed []byte
