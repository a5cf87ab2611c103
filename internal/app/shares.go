package app

import (
	"sync"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/server/websocket"
	"gatehouse/tool"
)

// claims divides a number of things among principals for a module, which knows who of
// its callers is an administrator.
func claims(name string, total int) func(principal string, administrator bool) (release func(), err error) {
	shares := limit.NewShares(limit.Resource{Name: name, Total: int64(total)})
	return func(principal string, administrator bool) (release func(), err error) {
		held, err := shares.Claim(limit.Holder{Principal: principal, Administrator: administrator}, 1)
		if err != nil {
			return nil, err
		}
		return sync.OnceFunc(held.Release), nil
	}
}

// maxRunningJobs is how many calls may run as jobs at once.
const maxRunningJobs = 2_000

// watchedResources is how many resources of packages clients may watch at once.
const watchedResources = 20_000

// claimWatch divides the watched resources of packages among principals.
func (a *App) claimWatch() func(c tool.Caller) (release func(), err error) {
	claim := claims("watched resources of packages", watchedResources)
	return func(c tool.Caller) (release func(), err error) { return claim(c.Principal, a.rules(c)) }
}

// claimSocket divides the WebSocket clients among principals.
func (a *App) claimSocket() func(c tool.Caller) (release func(), err error) {
	claim := claims("WebSocket clients", websocket.MaxClients)
	return func(c tool.Caller) (release func(), err error) { return claim(c.Principal, a.rules(c)) }
}
