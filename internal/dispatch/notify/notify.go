// Package notify sends notifications of a module to the administrators of its
// host.
package notify

import (
	"encoding/json"

	"gatehouse/module"
)

// Subject is the subject under which a module publishes News.
const Subject = "notification"

// Level says how much news matters.
type Level string

// The levels there are.
const (
	Success Level = "success"
	Info    Level = "info"
	Warning Level = "warning"
	Error   Level = "error"
)

// Notification is one notification. Only a title is needed; what is too long
// is cut, and data that is too long is left out.
type Notification struct {
	PackageID string          `json:"packageId,omitempty"` // of whom it is; "" is the host
	Code      string          `json:"code,omitempty"`      // what happened, for programs
	Level     Level           `json:"level,omitempty"`     // "" means info
	Title     string          `json:"title"`
	Message   string          `json:"message,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	// Once names what is told, so that it is not told twice while the first
	// notification is there; "" tells it every time.
	Once string `json:"once,omitempty"`
}

// Publish sends a notification for a module. It does nothing if the host does not listen.
func Publish(d module.Deps, n Notification) {
	if d.Publish != nil {
		d.Publish(Subject, n)
	}
}
