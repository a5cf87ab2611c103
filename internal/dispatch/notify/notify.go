// Package notify sends notifications of a module to the administrators of its host.
package notify

import (
	"encoding/json"

	"gatehouse/module"
)

// Subject is the subject under which a module publishes a Notification.
const Subject = "notification"

// Level is the severity of a notification.
type Level string

// These are the levels.
const (
	Success Level = "success"
	Info    Level = "info"
	Warning Level = "warning"
	Error   Level = "error"
)

// Notification is one notification. Only a title is required; text that is too long is cut, and data that is too
// long is left out.
type Notification struct {
	PackageID string          `json:"packageId,omitempty"` // the package it comes from; "" is the host
	Code      string          `json:"code,omitempty"`      // what happened, for programs
	Level     Level           `json:"level,omitempty"`     // "" means info
	Title     string          `json:"title"`
	Message   string          `json:"message,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	// Once identifies the notification, so that it is not added again while the first one exists; "" adds it every
	// time.
	Once string `json:"once,omitempty"`
}

// Publish sends a notification for a module. It does nothing if the host has no follower for it.
func Publish(d module.Deps, n Notification) {
	if d.Publish != nil {
		d.Publish(Subject, n)
	}
}
