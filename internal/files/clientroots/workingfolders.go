package clientroots

import (
	"strings"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// Working gives a call those folders in which its client was started and that its context may use. A context or a
// host that names folders limits them; a daemon that names none opens any, as gatehouse serve in its place would
// do. done closes what was opened for the call.
func (n *Narrower) Working(c *tool.Call) (done func(), err error) {
	done = func() {}
	set, ok := c.Roots.(*roots.Set)
	if !ok || len(c.Caller.Folders) == 0 {
		return done, nil
	}
	var part *roots.Set
	switch {
	case n.opts.AnyFolder && set == n.opts.Roots:
		var dirs []roots.Dir
		for _, path := range c.Caller.Folders {
			dirs = append(dirs, roots.Dir{Path: path})
		}
		if part, err = roots.Open(dirs, n.opts.Folders); err != nil {
			return nil, &tool.Refusal{Code: tool.CodeNotFound, Message: err.Error(),
				Next: "It is the folder this client was started for; make it again, or start the client elsewhere."}
		}
	case set.Everything() && !c.Caller.Named:
		part = set.StartingAt(c.Caller.Folders[0])
	default:
		part = set.Narrow(c.Caller.Folders)
	}
	switch {
	case part != nil:
		c.Roots = part
		return func() { part.Close() }, nil
	case set != n.opts.Roots && !c.Caller.Named:
		return done, nil // the folders of the context count; the client did not choose where it was started
	}
	return nil, &tool.Refusal{
		Code: tool.CodeOutsideRoot,
		Message: "this client works in " + strings.Join(
			c.Caller.Folders,
			", ",
		) + ", which is outside the folders this server may touch",
		Next: "Start the client in one of the server's folders, or name one with -d.",
	}
}
