package packages

import (
	"encoding/json"
	"slices"
	"sync"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

const (
	maxVisits       = 4096 // of all packages; beyond it the oldest is forgotten
	maxElicitation  = 1 << 10
	codeVisitNeeded = -32042 // of 2025-11-25: a call needs that its client visits URLs first
)

// visit is a URL that a server has asked a session to visit.
type visit struct{ pkg, id, session string }

// visits are the URLs that sessions were asked to visit and that have not been reported as done. It is safe for
// concurrent use.
type visits struct {
	mu  sync.Mutex
	all []visit // oldest first
}

// asked records that a server asks a session to visit the URL of an elicitation, whose params these are.
func (v *visits) asked(pkg, session string, params json.RawMessage) {
	id, _ := stringMember(params, "elicitationId")
	one := visit{pkg, id, session}
	if id == "" || len(id) > maxElicitation || session == "" {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if slices.Contains(v.all, one) {
		return
	}
	if len(v.all) >= maxVisits {
		v.all = slices.Delete(v.all, 0, 1)
	}
	v.all = append(v.all, one)
}

// refused records the URLs that the error of a call asks its caller to visit.
func (v *visits) refused(pkg string, from *Peer, err *tool.WireError) {
	if err.Code != codeVisitNeeded || rawjson.Kind(err.Data) != '{' {
		return
	}
	all, _ := rawjson.Get(err.Data, "elicitations")
	for one := range rawjson.Elements(all) {
		v.asked(pkg, from.connection(), one)
	}
}

// done forgets the visits of an elicitation of a package, and returns the sessions that were asked.
func (v *visits) done(pkg, id string) (sessions []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = slices.DeleteFunc(v.all, func(one visit) bool {
		found := one.pkg == pkg && one.id == id
		if found {
			sessions = append(sessions, one.session)
		}
		return found
	})
	return sessions
}

// dropVisits drops the visits of sessions that have ended.
func (v *visits) dropVisits(ended func(session string) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = slices.DeleteFunc(v.all, func(one visit) bool { return ended(one.session) })
}

// reportVisited tells the sessions that were asked to visit a URL that it is done, in the server's words.
func (p *managedPackage) reportVisited(params json.RawMessage) {
	id, _ := stringMember(params, "elicitationId")
	if len(params) > maxQuestion {
		return
	}
	for _, session := range p.manager.visits.done(p.id, id) {
		if p.manager.opts.Completed != nil {
			p.manager.opts.Completed(session, params)
		}
	}
}
