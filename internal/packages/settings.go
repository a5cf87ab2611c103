package packages

import "time"

// Settings are the settings of packages, which the configuration of a host
// embeds. Each 0 stands for the default.
type Settings struct {
	Begin   time.Duration `doc:"Time for a server to be ready; 0 means 30s."`
	Answer  time.Duration `doc:"Time for one call; 0 means 5m."`
	Idle    time.Duration `doc:"Time without calls, after which a server that is started on demand is ended; 0 means 10m."`
	Install time.Duration `doc:"Time for one installation; 0 means 15m."`
	Message int64         `doc:"Size of one message of a server; what is longer is answered by an error. 0 means 16 MiB, or what a door takes if that is less." unit:"bytes"`
	Most    int           `doc:"Packages on this host; 0 means 100."`
}
