package system

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/internal/access/displaytext"
	"gatehouse/tool"
)

// bus is a connection to the system's D-Bus, which is opened when it is needed and
// again after it was lost. It is safe for concurrent use.
type bus struct {
	address string // "" means the system's

	mu     sync.Mutex
	conn   *dbus.Conn
	closed bool
}

// callTime bounds a call of a daemon that has no longer limit of its own. D-Bus starts
// daemons that do not run.
const callTime = 30 * time.Second

func (b *bus) connect() (*dbus.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.New("the module is closed")
	}
	if b.conn != nil && b.conn.Connected() {
		return b.conn, nil
	}
	conn, err := b.dial()
	if err == nil {
		b.conn = conn
	}
	return conn, err
}

// dial opens a connection that belongs to the caller.
func (b *bus) dial() (*dbus.Conn, error) {
	if b.address != "" {
		return dbus.Connect(b.address)
	}
	return dbus.ConnectSystemBus()
}

func (b *bus) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.conn == nil {
		return nil
	}
	return b.conn.Close()
}

// names returns the names of the daemons that run or that D-Bus starts when they are
// called.
func (b *bus) names(ctx context.Context) ([]string, error) {
	var running, started []string
	err := b.callMethod(ctx, busName, "/org/freedesktop/DBus", busName+".ListNames").Store(&running)
	err = errors.Join(err, b.callMethod(ctx, busName, "/org/freedesktop/DBus", busName+".ListActivatableNames").Store(&started))
	return append(running, started...), err
}

// runs reports whether a daemon runs.
func (b *bus) runs(ctx context.Context, daemon string) (is bool, err error) {
	err = b.callMethod(ctx, busName, "/org/freedesktop/DBus", busName+".NameHasOwner", daemon).Store(&is)
	return is, err
}

const busName = "org.freedesktop.DBus"

// reply is the result of a call, or why it failed. Its error is a *tool.Refusal if
// the daemon said why it did not do it.
type reply struct {
	body []any
	err  error
}

// Store stores the values of the reply in the variables that into points to.
func (r reply) Store(into ...any) error {
	if r.err != nil {
		return r.err
	}
	return dbus.Store(r.body, into...)
}

// callMethod calls a method of a daemon. No daemon asks a person for it: without the right
// to do it, the reply is that it is not permitted.
func (b *bus) callMethod(ctx context.Context, daemon string, path dbus.ObjectPath, method string, args ...any) reply {
	conn, err := b.connect()
	if err != nil {
		return reply{err: &tool.Refusal{
			Code:    tool.CodeUnavailable,
			Message: "the system's D-Bus cannot be reached: " + err.Error(),
			Next:    "gatehouse doctor says what this machine lacks.",
		}}
	}
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTime)
		defer cancel()
	}
	c := conn.Object(daemon, path).CallWithContext(ctx, method, 0, args...)
	return reply{c.Body, refusalOf(daemon, c.Err)}
}

// all returns the properties of an interface of an object.
func (b *bus) all(ctx context.Context, daemon string, path dbus.ObjectPath, iface string) (properties, error) {
	var p map[string]dbus.Variant
	err := b.callMethod(ctx, daemon, path, "org.freedesktop.DBus.Properties.GetAll", iface).Store(&p)
	return p, err
}

// set sets a property of an object.
func (b *bus) set(ctx context.Context, daemon string, path dbus.ObjectPath, iface, name string, v any) error {
	return b.callMethod(ctx, daemon, path, "org.freedesktop.DBus.Properties.Set", iface, name, dbus.MakeVariant(v)).err
}

// properties are those of an object, by name.
type properties map[string]dbus.Variant

// get returns a property, or the zero value if there is none of that type.
func get[T any](p properties, name string) (v T) {
	if at, has := p[name]; has {
		v, _ = at.Value().(T) // the zero value
	}
	return v
}

// denials are the names of errors that mean that the system's policy forbids the call.
var denials = []string{
	"org.freedesktop.DBus.Error.AccessDenied", "org.freedesktop.DBus.Error.AuthFailed",
	"org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", "org.freedesktop.PolicyKit1.Error.NotAuthorized",
	"org.freedesktop.NetworkManager.PermissionDenied", "org.freedesktop.NetworkManager.Settings.PermissionDenied",
	"org.freedesktop.UDisks2.Error.NotAuthorized", "org.freedesktop.UDisks2.Error.NotAuthorizedCanObtain",
	"org.freedesktop.UDisks2.Error.NotAuthorizedDismissed", "org.freedesktop.fwupd.AuthFailed",
	"org.freedesktop.PackageKit.Transaction.RefusedByPolicy",
}

// codes are what errors of daemons mean, by the last word of their names.
var codes = map[string]tool.Code{
	"InvalidArgs": tool.CodeInvalidArguments, "InvalidArgument": tool.CodeInvalidArguments,
	"InvalidProperty": tool.CodeInvalidArguments, "NoSuchUnit": tool.CodeNotFound, "LoadFailed": tool.CodeNotFound,
	"UnknownObject": tool.CodeNotFound, "UnknownDevice": tool.CodeNotFound, "UnknownConnection": tool.CodeNotFound,
	"NotFound": tool.CodeNotFound, "ServiceUnknown": tool.CodeUnavailable, "NoReply": tool.CodeTimeout,
	"DeviceBusy": tool.CodeBusy, "NothingToDo": tool.CodeUnchanged, "NotSupported": tool.CodeUnsupported,
	"UnknownMethod": tool.CodeUnsupported, "UnknownInterface": tool.CodeUnsupported,
}

// refusalOf returns what a daemon's error means for the caller.
func refusalOf(daemon string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return tool.Refuse(tool.CodeTimeout, "%s did not answer in time", daemon)
	}
	said, is := errors.AsType[dbus.Error](err)
	if !is {
		return fmt.Errorf("call %s: %w", daemon, err)
	}
	text := displaytext.Cut(strings.TrimSpace(said.Error()), 1000, " [...]")
	if slices.Contains(denials, said.Name) {
		return &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "not permitted: the system's policy (polkit) does not let this host's user do it: " + text,
			Next:    "Nothing was changed. docs/appliance.md has the rule of polkit that permits it.",
		}
	}
	last := said.Name[strings.LastIndexByte(said.Name, '.')+1:]
	if code, known := codes[last]; known {
		return tool.Refuse(code, "%s: %s", daemon, text)
	}
	return tool.Refuse(tool.CodeFailed, "%s: %s (%s)", daemon, text, said.Name)
}
