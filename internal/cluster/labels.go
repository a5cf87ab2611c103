package cluster

import (
	"fmt"
	"regexp"
	"sync"
)

const (
	mostLabels   = 20
	longestLabel = 100
)

// labelForm is a label of a node: KEY=VALUE.
var labelForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z][a-z0-9._-]{0,39}=[A-Za-z0-9][A-Za-z0-9._/-]{0,59}$`)
})

// CheckLabels refuses texts that are no labels of nodes.
func CheckLabels(labels []string) error {
	if len(labels) > mostLabels {
		return fmt.Errorf("there are %d labels; at most %d", len(labels), mostLabels)
	}
	for _, l := range labels {
		if len(l) > longestLabel || !labelForm().MatchString(l) {
			return fmt.Errorf("label %.100q: expected KEY=VALUE, such as zone=a or driver=firecracker", l)
		}
	}
	return nil
}
